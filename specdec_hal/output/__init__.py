"""From a request's tokens to what its reader gets: text without stop strings, and the parts of a chat's answer."""
