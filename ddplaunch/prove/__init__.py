"""Whether an unchanged script trains on several ranks what one process would: measured in ranks, judged by claims."""
