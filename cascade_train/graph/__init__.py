"""From a workflow's JSON to its result: ``file`` reads it, ``check`` says what is wrong, ``run`` runs it."""
