"""The broker receives calls, decides what they mean and delivers messages."""
