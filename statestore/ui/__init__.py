"""The live page of checkpoints: a server for one user's browser, over `api` and `report`."""
