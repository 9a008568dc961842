"""Writing state as data: rows of a query given by its user, as a new savepoint."""
