"""Who a site or an operator is, and how it proves it: certificates, the files of an identity, signatures."""
