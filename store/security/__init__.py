"""The package decides who may use the store's broker, and for what: users with their secrets, and rules
for each user.
"""
