"""Stand-in for QuantumGrav: only what its guide's torchrun script uses."""

import yaml


def get_loader():
    """Return a YAML loader that accepts the application's tag."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!pyobject", lambda loader, node: loader.construct_scalar(node))
    return Loader
