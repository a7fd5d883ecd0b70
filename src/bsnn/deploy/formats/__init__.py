"""What a model file can be exported as; so far C99."""
