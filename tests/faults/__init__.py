"""The fault suite: agents at work while their server and their connections break."""
