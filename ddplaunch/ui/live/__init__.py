"""What `top` shows while a run trains, and the screen that shows it."""
