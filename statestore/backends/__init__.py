"""State backends. Only heap builds on another one: it is filesystem's versions on other storage."""
