package convert

import "strings"

// spdxIDs are licences of models, by their SPDX identifier in lower case, which is a frequent
// spelling. Names unknown to SPDX, such as "llama3.1" or "other", are not included.
// https://github.com/spdx/license-list-data/tree/v3.27.0
var spdxIDs = func() map[string]string {
	m := map[string]string{}
	for id := range strings.FieldsSeq(`
		0BSD AFL-3.0 AGPL-3.0-only AGPL-3.0-or-later Apache-2.0 Artistic-2.0 BSD-2-Clause
		BSD-3-Clause BSD-3-Clause-Clear BSL-1.0 C-UDA-1.0 CC-BY-2.0 CC-BY-2.5 CC-BY-3.0 CC-BY-4.0
		CC-BY-NC-2.0 CC-BY-NC-3.0 CC-BY-NC-4.0 CC-BY-NC-ND-3.0 CC-BY-NC-ND-4.0 CC-BY-NC-SA-2.0
		CC-BY-NC-SA-3.0 CC-BY-NC-SA-4.0 CC-BY-ND-4.0 CC-BY-SA-3.0 CC-BY-SA-4.0 CC0-1.0
		CDLA-Permissive-1.0 CDLA-Permissive-2.0 CDLA-Sharing-1.0 ECL-2.0 EPL-1.0 EPL-2.0 EUPL-1.1
		EUPL-1.2 GFDL-1.3-only GPL-2.0-only GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later ISC
		LGPL-2.1-only LGPL-2.1-or-later LGPL-3.0-only LGPL-3.0-or-later LPPL-1.3c MIT MPL-2.0 MS-PL
		NCSA ODbL-1.0 ODC-By-1.0 OFL-1.1 OSL-3.0 PDDL-1.0 PostgreSQL Unlicense WTFPL Zlib
		AGPL-3.0 GPL-2.0 GPL-3.0 LGPL-2.1 LGPL-3.0
	`) {
		m[strings.ToLower(id)] = id
	}
	return m
}()

// SPDX returns a licence as an SPDX expression, "" unless it consists of known identifiers with AND
// and OR between them.
func SPDX(s string) string {
	words := strings.Fields(s)
	if len(words)%2 == 0 {
		return ""
	}
	for i, w := range words {
		if i%2 == 1 {
			if w != "AND" && w != "OR" {
				return ""
			}
			continue
		}
		id, ok := spdxIDs[strings.ToLower(w)]
		if !ok {
			return ""
		}
		words[i] = id
	}
	return strings.Join(words, " ")
}
