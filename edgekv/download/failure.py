"""Why one source of a model could not be used, while others may still be tried."""


class SourceFailed(Exception):
    """Caught in this package, where the reasons of all sources become one ModelNotFound."""
