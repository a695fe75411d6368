"""The guard, a light process beside torchrun: captures ranks' output, notices hangs, ends leftover processes."""
