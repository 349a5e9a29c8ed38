"""Who may use the store's broker, and for what: users with their secrets, and the rules for each of them."""
