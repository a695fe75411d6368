"""``ddplaunch.launch``: launches a script or a function from a Python program or a notebook."""
