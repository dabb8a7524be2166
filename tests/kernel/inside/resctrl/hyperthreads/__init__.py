"""A host whose two cores have two threads each, as this kernel finds them."""
