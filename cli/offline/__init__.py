"""Commands over a store directory that no broker runs on. `recover`, `migrate`, `restore` and `user bootstrap`
change it.
"""
