// The matrices of experts in slots.
const ELSEWHERE = 0xffffffffu;

// The expert of a slot. Without ids, all matrices are taken by turns.
fn expert_of(slot: u32) -> u32 {
  if (numbers.ids_type == 0u) {
    return slot % numbers.matrices;
  }
  return ids_words[slot];
}

// Which matrix of the array is an expert's; ELSEWHERE if it is in another array. Without places, the array has
// those of all experts.
fn place_of(expert: u32) -> u32 {
  if (numbers.places_type == 0u) {
    return expert;
  }
  return places_words[expert];
}
