"""``ddplaunch.launch``: a launch from a Python program or a notebook, of a script or of a function."""
