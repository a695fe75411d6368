"""Translates lines, scripts and files of other launchers into commands of ddplaunch."""
