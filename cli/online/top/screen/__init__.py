"""The screen of `quarry top`: its pages, tables and widgets."""
