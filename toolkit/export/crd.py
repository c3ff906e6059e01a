"""Whether an object is one that a CustomResourceDefinition lets in, unknown fields refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
_OPEN = "x-kubernetes-preserve-unknown-fields"
# Of every object, and in no definition.
_COMMON = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


def manifest_problems(manifest: Mapping[str, Any], crd: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a manifest as ``spec/trainer/numNodes: …``; empty when it would be accepted.

    Rules in the Common Expression Language (x-kubernetes-validations) are not looked at.

    Args:
        crd: as `kubectl get crd NAME -o yaml` gives it.

    Raises:
        ValueError: the definition is of another kind, or has no schema for this version.
    """
    import jsonschema  # for those alone who check

    version = str(manifest["apiVersion"]).rpartition("/")[2]
    try:
        kind = crd["spec"]["names"]["kind"]
        schemas = {each["name"]: each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"]}
    except (KeyError, TypeError) as error:
        raise ValueError("this is no CustomResourceDefinition") from error
    if kind != manifest["kind"] or version not in schemas:
        made = f"{manifest['kind']} {version}"
        raise ValueError(f"it defines {kind} {', '.join(schemas)}, and not {made}")
    schema = _closed(schemas[version])
    schema["properties"] = {**_COMMON, **schema.get("properties", {})}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return sorted(
        f"{'/'.join(map(str, error.absolute_path)) or '(all)'}: {error.message}" for error in errors
    )


def _closed(schema: Any) -> Any:
    """Return a schema in which an object has the named fields and no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        # The names of fields are no keywords.
        name: {field: _closed(of) for field, of in value.items()} if name == "properties" else _closed(value)
        for name, value in schema.items()
        if name != "description"
    }
    if "properties" in made and not made.get(_OPEN):
        made.setdefault("additionalProperties", False)
    return made
