"""Every call of the admin port passes these steps: a slot, the request's bytes, the caller, the rights, errors."""
