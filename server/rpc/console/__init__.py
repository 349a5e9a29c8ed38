"""The calls of the console: JSON to protobuf and back, and the way to the admin port."""
