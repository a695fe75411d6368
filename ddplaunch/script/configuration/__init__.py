"""Configurations of scripts: the keys of their files, and the words that override them."""
