"""Lets nodes that were started by hand meet and compare themselves before torchrun starts."""
