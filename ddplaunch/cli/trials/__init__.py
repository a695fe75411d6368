"""Short runs of an unchanged script that are measured and then ended, for `scale` and `fit`."""
