"""The end of a run: who failed first, why, and what is recorded and said."""
