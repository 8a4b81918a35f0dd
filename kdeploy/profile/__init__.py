"""The profile: the YAML that declares a deployment, and the hosts file it is read against."""

from kdeploy.profile.gate import Gate
from kdeploy.profile.model import HostEntry, HostsFile, ProfileFile, Runtime, Serve
from kdeploy.profile.read import Profile, find_project, load
from kdeploy.profile.secrets import read_secrets

__all__ = [
    "Gate",
    "HostEntry",
    "HostsFile",
    "Profile",
    "ProfileFile",
    "Runtime",
    "Serve",
    "find_project",
    "load",
    "read_secrets",
]
