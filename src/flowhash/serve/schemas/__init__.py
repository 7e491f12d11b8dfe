"""What requests and answers look like: models, and the document that is made from them."""
