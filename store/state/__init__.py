"""The package is the database `<store>/quarry/`: column families, identity of the store, jobs, keys of
in-flight rows.
"""
