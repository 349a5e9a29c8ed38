"""Reconciles access rules."""

from __future__ import annotations

from quarry_mq.cli.operator.broker import CallRefused
from quarry_mq.cli.operator.declarations.declared import DeclaredReconciler, Found, Settings
from quarry_mq.cli.operator.resources import ACCESS_RULE, Resource
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from quarry_mq.store.errors import Invalid
from quarry_mq.store.security.policies import parse_source


class RuleReconciler(DeclaredReconciler):
    """Brings access rules to what resources declare.

    A rule goes with its resource unless that says otherwise: a right that nobody declares any more must not stay.
    """

    kind = ACCESS_RULE
    noun = "rule"
    deletion_policy_default = "Delete"

    def thing(self, resource: Resource) -> str:
        spec = resource.spec
        return f"{spec.get('decision')} {spec.get('resource')} for user {spec.get('user')}"

    def declared(self, resource: Resource) -> Settings:
        try:
            sources = {str(parse_source(each)) for each in resource.spec.get("sources", ())}
        except Invalid as error:
            raise CallRefused(str(error)) from error
        return {"actions": sorted(resource.spec["actions"]), "sources": sorted(sources)}

    async def find(self, resource: Resource) -> Found | None:
        request = pb.GetPolicyRequest(user=resource.spec["user"])
        policy = await self.broker.found("SecurityService/GetPolicy", request)
        named = (resource.spec["resource"], resource.spec["decision"])
        for rule in () if policy is None else policy.rules:
            if (rule.resource, rule.decision) == named:
                return Found({"actions": sorted(rule.actions), "sources": sorted(rule.sources)}, rule)
        return None

    async def create(self, resource: Resource, settings: Settings) -> None:
        spec = resource.spec
        rule = pb.Rule(
            resource=spec["resource"],
            decision=spec["decision"],
            actions=settings["actions"],
            sources=settings["sources"],
        )
        await self.broker.call("SecurityService/SetRule", pb.SetRuleRequest(user=spec["user"], rule=rule))

    async def change(self, resource: Resource, found: Found, changes: Settings) -> None:
        await self.create(resource, {**found.settings, **changes})

    async def delete(self, resource: Resource) -> None:
        if await self.find(resource) is not None:
            spec = resource.spec
            request = pb.RemoveRuleRequest(user=spec["user"], resource=spec["resource"], decision=spec["decision"])
            await self.broker.call("SecurityService/RemoveRule", request)
