"""Remembers which process imported it."""

import os

PID = os.getpid()
