"""State backends. Only heap builds on another one: filesystem's versions on other storage."""
