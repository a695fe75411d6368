"""The processes of this machine: the table, which run each belongs to, orphans, and how to stop them."""
