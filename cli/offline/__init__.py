"""Commands on the directory of a stopped store. `recover`, `migrate`, `restore` and `user bootstrap` change it."""
