"""Leaves a thread running when it is imported."""

import threading
import time

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
