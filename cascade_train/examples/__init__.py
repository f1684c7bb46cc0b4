"""Pictures that come with the package; a workflow names them ``bundled/<folder>``."""
