"""The profile: the YAML that declares a deployment, and the hosts file it is read against."""

from kdeploy.profile.model import Gate, HostEntry, HostsFile, ProfileFile, Runtime, Serve
from kdeploy.profile.read import Profile, find_project, load

__all__ = ["Gate", "HostEntry", "HostsFile", "Profile", "ProfileFile", "Runtime", "Serve", "find_project", "load"]
