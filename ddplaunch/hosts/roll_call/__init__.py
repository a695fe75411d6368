"""Nodes that are started by hand meet before torchrun does."""
