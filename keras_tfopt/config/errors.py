"""What is wrong with a configuration."""


class ConfigurationError(ValueError):
    """A configuration cannot be applied; nothing was touched."""
