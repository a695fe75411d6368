"""Short runs of an unchanged script that are measured and ended: what `scale` and `fit` try out."""
