"""Says who imported what was to be preloaded: this process, or another one before it."""

import importlib
import os
import sys

known = "package.heavy" in sys.modules
sys.stdout.write(f"{known} {os.getpid() == importlib.import_module('package.heavy').PID}\n")
