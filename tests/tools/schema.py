"""As much of JSON Schema as the forms of the tools use; a keyword that is not known here fails."""

TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}
KNOWN = {
    "$schema", "title", "description", "type", "properties", "required", "items", "additionalProperties", "anyOf",
    "enum", "const", "minimum",
}


def faults(value, schema, at="$"):
    """What is wrong with a value, one line each."""
    unknown = set(schema) - KNOWN
    assert not unknown, f"{at}: keywords {unknown}"
    found = []
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or kind in ("integer", "number") and isinstance(value, bool)):
        return [f"{at}: {value!r} is no {kind}"]
    if "anyOf" in schema and all(faults(value, one, at) for one in schema["anyOf"]):
        found.append(f"{at}: {value!r} is none of {schema['anyOf']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{at}: {value!r} is below {schema['minimum']}")
    found += [f"{at}: no {name}" for name in schema.get("required", []) if name not in value]
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    if isinstance(value, dict):
        for name, member in value.items():
            found += faults(member, properties.get(name, others), f"{at}.{name}")
            if properties and name not in properties:
                found.append(f"{at}.{name}: not documented")
    if isinstance(value, list):
        for number, element in enumerate(value):
            found += faults(element, schema.get("items", {}), f"{at}[{number}]")
    return found
