"""Log text to the name of a root cause; refuses to read a machine, or to guess where no line decides."""
