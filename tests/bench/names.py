"""Names in a fleet that is made up."""


def host_names(hosts: int) -> list[str]:
    """Of the whole fleet, in order."""
    return [f"kvm{number:04d}" for number in range(hosts)]
