"""The guard, a light process beside torchrun: captures ranks, notices hangs, leaves nothing running."""
