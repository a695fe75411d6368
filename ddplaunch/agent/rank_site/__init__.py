"""The folder that leads PYTHONPATH of ranks whose stacks may be asked for; holds nothing but ``sitecustomize``."""
