"""What runs inside torchrun and beside it while ranks train; refuses to decide a launch."""
