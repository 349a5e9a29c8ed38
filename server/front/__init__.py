"""The gRPC front: one contract, several implementations."""

from server.front.contract import Call, Front, FrontLimits, GrpcStatus, Method, Methods

__all__ = ["Call", "Front", "FrontLimits", "GrpcStatus", "Method", "Methods"]
