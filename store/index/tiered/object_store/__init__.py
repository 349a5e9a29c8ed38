"""Object stores that hold uploaded files of the tiered index, and what is cached of these files."""
